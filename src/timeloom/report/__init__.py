"""What a run came to, to be looked at: from run directories to a page, a trace, figures, tables and a terminal view."""
