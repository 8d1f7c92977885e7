"""A batch spread over ranks: the group they form, what they agree on, and what is put together from all of them."""
