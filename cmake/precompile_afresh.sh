#!/bin/sh
# Runs the compiler command that it is given, after removing the output that the command names.
#
# ccache takes a precompiled header that lies beside its source for an input of the compilation. The one of the last build would
# then be part of the key, not the headers that were parsed now: the old header would be handed out again, and all that is
# compiled with it would see the old classes.
set -eu
next_is_output=no
for argument in "$@"; do
  [ "$next_is_output" = yes ] && rm -f "$argument"
  next_is_output=no
  [ "$argument" = -o ] && next_is_output=yes
done
exec "$@"
