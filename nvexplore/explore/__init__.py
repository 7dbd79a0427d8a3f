"""Reading records: state, recordings, frames and plots. Needs neither torch nor Jupyter."""
