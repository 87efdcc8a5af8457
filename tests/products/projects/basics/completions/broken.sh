#!/usr/bin/env bash
# Fails.
echo "said on stderr" >&2
exit 1
