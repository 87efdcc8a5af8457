#!/usr/bin/env bash
# Says nothing.
sleep 60
