"""Scraping: any Prometheus endpoint as a source, with Prometheus's relabelling and limits of our own."""
