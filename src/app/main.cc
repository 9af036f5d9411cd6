#include "app/program.h"

int main(int argc, char** argv) { return tutti::tutti_main(argc, argv); }
