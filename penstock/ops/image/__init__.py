"""Images: files, colours, sizes, boxes, and how alike two are."""
