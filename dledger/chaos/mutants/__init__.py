"""Mutants: small wrong changes that the tests must notice.

Each `*.patch` here is a unified diff against the repository. A few lines before the diff say what the patch
breaks and which rule forbids it (S1-S30 of docs/internals/safety.md, figure 2 of the Raft paper). A patch is
applied to a copy of the tree, never to the tree itself. Production code has no switch for mutants.

`patches` reads and applies them, `suites` is the table of what runs against them, `command` runs it all.

To add a mutant, change the code, run `git diff -U1 > dledger/chaos/mutants/NAME.patch`, put comment lines (`#
...`) before the diff, and undo the change. If a patch no longer applies, tests/chaos/test_mutants.py fails;
then make the patch anew.
"""
