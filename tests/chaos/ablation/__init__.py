"""Every safety rule is switched off by a small change of the product's code, and its test must notice."""
