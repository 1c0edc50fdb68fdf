"""Tests of the adapters: duotone in the terms of other libraries."""
