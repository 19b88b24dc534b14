"""The inputs of a step of one token a request, gathered from the requests' state rows,
and its tokens put there."""
