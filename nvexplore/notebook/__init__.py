"""What shows: the IPython extension, its magics and the widgets. Only this part of nvexplore knows Jupyter."""
