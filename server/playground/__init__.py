"""Serves the playground: a page in the browser, made of static files."""
