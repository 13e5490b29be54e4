"""Reports: records drawn as HTML pages and figures."""
