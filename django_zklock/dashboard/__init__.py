"""What the admin shows of the locks: lists, columns, filters, pages and forms, for any `ModelAdmin` class."""
