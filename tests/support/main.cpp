#include "tests/support/session.h"

int main(int argc, char** argv) { return bitloom::test::run_session(argc, argv); }
