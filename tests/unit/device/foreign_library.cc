// A library that is nobody's GPU library.
extern "C" int something_else() { return 0; }
