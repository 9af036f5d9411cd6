#include "device/library.h"

namespace tutti {}
