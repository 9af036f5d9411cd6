// Precompiled for the tests that see ATen.
#pragma once
#include <gtest/gtest.h>

#include "pch_torch.h"
