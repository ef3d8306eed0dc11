"""Downloads and converts the demo target model, once, into the cache folder."""
