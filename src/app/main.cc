// The program `tutti-torch`, which loads LibTorch: the whole command. The front
// (app/front/main.cc) becomes it for what it does not do itself.
#include "app/tutti_main.h"

namespace tutti {

extern const char* const kBuild;  // cmake/commit.cmake

}  // namespace tutti

int main(int argc, char** argv) { return tutti::tutti_main(argc, argv, tutti::kBuild); }
