"""Streamlit dashboards."""
