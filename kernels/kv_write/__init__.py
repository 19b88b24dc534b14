"""Writing a step's keys and values into the paged KV cache: what `rotary_kv_write` is made of."""
