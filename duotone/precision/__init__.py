"""The stages that decide: lists, ranges, safety rules, painter, casts, optimizations, record."""
