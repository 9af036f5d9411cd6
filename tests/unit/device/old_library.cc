// A GPU library of another version: what a command meets next to a library that was not built with
// it.
extern "C" const int* tutti_device_library() {
  static const int version = -7;
  return &version;
}
