"""All that is Flower's: both apps, messages, and the way to the nodes of a Grid."""
