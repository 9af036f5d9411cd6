// Precompiled for the tests of the torch-free folders.
#pragma once
#include <gtest/gtest.h>

#include "pch_plain.h"
