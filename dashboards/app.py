"""The dashboard: ``streamlit run dashboards/app.py -- --store PATH``.

It reads the store and never writes or creates it; it follows a running evaluator. The
run picked is kept in the page's address, so that a refresh or a shared link shows it.
"""

import sys
from pathlib import Path

import streamlit as st

from dashboards import data
from dashboards.views import run as run_page
from evalmon.errors import StoreError

FOLLOW_SECONDS = 2.0  # pause between looks at the store
ICON = Path(__file__).with_name("icon.svg")  # a named icon would be fetched from the web


def main() -> None:
    """Show the page of the picked run, or say what is missing."""
    st.set_page_config(page_title="evalmon", page_icon=str(ICON), layout="wide")
    store = data.locate(sys.argv[1:])
    found = _look(store)
    st.html("<style>.block-container { padding-top: 2.5rem; max-width: 1480px }</style>")
    title, picker = st.columns([3, 1], vertical_alignment="bottom")
    title.title("evalmon", anchor=False)
    run = None
    if isinstance(found, tuple) and found:
        if st.session_state.get("run") not in found:
            linked = st.query_params.get("run")
            st.session_state["run"] = linked if linked in found else data.first_shown(store)
        run = picker.selectbox("Run", found, key="run")
        st.query_params["run"] = run
    _follow(store, run, found)


@st.fragment(run_every=FOLLOW_SECONDS)
def _follow(store: str, run: str | None, found: tuple[str, ...] | str) -> None:
    """Show the store as it is now; the whole page runs again only when the runs change."""
    if _look(store) != found:
        st.rerun()
    if isinstance(found, str):
        st.error(run_page.plain(found), icon=":material/error:")
    elif run is not None:
        try:
            run_page.show(data.view(store, run))
        except StoreError as error:
            st.error(run_page.plain(str(error)), icon=":material/error:")
    elif data.is_missing(store):
        st.info(
            f"There is no store at {run_page.plain(store)} yet. An evaluator creates it "
            "(`evalmon watch RUN`, or `make demo`); this page opens it by itself.",
            icon=":material/hourglass_empty:",
        )
    else:
        st.info(
            f"The store {run_page.plain(store)} holds no run yet. A run appears here as soon as "
            "`evalmon watch RUN` has begun.",
            icon=":material/hourglass_empty:",
        )


def _look(store: str) -> tuple[str, ...] | str:
    """Return the runs of the store, none while it is missing, or why it cannot be read."""
    try:
        return () if data.is_missing(store) else data.runs(store)
    except StoreError as error:
        return str(error)


main()
