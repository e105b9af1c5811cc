"""DynaHB's data plane: ranks that train on hybrid batches of a cache of their own, and seldom meet."""
