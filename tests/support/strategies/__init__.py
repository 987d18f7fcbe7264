"""Problems for strategies, and what the best answer to them costs."""
