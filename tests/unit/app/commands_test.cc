#include "app/cli/commands.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(CommandTable, ARowWithoutAFunctionIsNamed) {
  CommandFunctions functions;
  for (const CommandRow& row : commands())
    if (row.needs == Needs::kTorch) functions[row.name] = [] { return 0; };
  check_functions(functions, {Needs::kTorch});
  functions.erase("doctor");
  EXPECT_DEATH(check_functions(functions, {Needs::kTorch}),
               "the command doctor has a row but no function");
}

}  // namespace
}  // namespace tutti
