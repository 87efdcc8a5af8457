#!/usr/bin/env bash
# Sleeps longer than it may.
sleep 30
