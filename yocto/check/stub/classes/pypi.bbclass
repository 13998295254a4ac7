# Of the layers that ours stands on.
