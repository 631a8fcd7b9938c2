/* SPDX-License-Identifier: MIT */
/* How a test program runs its cases; must know none of them. */
#include "support/suite.h"

#include <stdio.h>
#include <stdlib.h>

/* The lines, which Check leaves out of its TAP; tests/tally.py reads them. */
static void tell_places(SRunner *runner)
{
    TestResult **results = srunner_failures(runner);

    for (int i = 0; i < srunner_ntests_failed(runner); i++)
        fprintf(stderr, "not ok: %s:%d: %s\n", tr_lfile(results[i]), tr_lno(results[i]), tr_msg(results[i]));
    free(results);
}

int suite_run(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    int failed;

    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    tell_places(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
