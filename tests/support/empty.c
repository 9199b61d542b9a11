/* Keeps the support library non-empty. */
extern int mok_test_support_present;
int mok_test_support_present = 1;
