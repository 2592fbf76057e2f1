"""The pages of the locks in the admin: list, filters, columns, details, forms and views, for any `ModelAdmin` class."""
