// The one symbol that libtutti_cuda.so exports.
#include "device/library.h"

namespace tutti {}
