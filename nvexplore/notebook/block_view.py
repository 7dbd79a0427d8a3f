"""A cell a physical KV block: free, cached, used or shared, how full, and what the newest step wrote."""

from nvexplore.notebook.view import View


class BlockView(View):
    """``BlockView(explorer)``; drawn by widgets/block_view.js."""
