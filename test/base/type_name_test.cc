#include "src/base/type_name.h"

#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

namespace lowerd {
namespace {

TEST(TypeNameTest, DemanglingDropsOnlyMangleAtoms) {
  EXPECT_EQ(Demangle("__torch__.acme.___torch_mangle_12.Lin"), "__torch__.acme.Lin");
  EXPECT_EQ(Demangle("__torch__.___torch_mangle_1.___torch_mangle_2.A"), "__torch__.A");
  EXPECT_EQ(Demangle("__torch__.___torch_mangle_.A"), "__torch__.___torch_mangle_.A");
  EXPECT_EQ(Demangle("__torch__.___torch_mangle_1x.A"), "__torch__.___torch_mangle_1x.A");
  EXPECT_EQ(Demangle(""), "");
}

TEST(TypeNameTest, MangleGoesBeforeTheLastAtom) {
  EXPECT_EQ(MangledName("torch.jit.LoweredModule.reference.__torch__.Lin", 7),
            "torch.jit.LoweredModule.reference.__torch__.___torch_mangle_7.Lin");
  EXPECT_EQ(Demangle(MangledName("a.b.c", kMangleRange - 1)), "a.b.c");
  EXPECT_EQ(MangleNumbers(MangledName("a.b", 5)), std::vector<int64_t>{5});
  EXPECT_EQ(MangleNumbers("a.___torch_mangle_99999999999999999999.b"),
            std::vector<int64_t>{std::numeric_limits<int64_t>::max()});
}

TEST(TypeNameTest, LoweredNamesComeInPairs) {
  const std::string base = LoweredModuleBaseName("acme", "__torch__.___torch_mangle_3.Lin");
  EXPECT_EQ(base, "torch.jit.LoweredModule.acme.__torch__.Lin");
  EXPECT_EQ(WrapperNameOf(base), "torch.jit.LoweredWrapper.acme.__torch__.Lin");
  EXPECT_EQ(LoweredModuleNameOf(WrapperNameOf(base)), base);
  EXPECT_TRUE(IsLoweredModuleName(base));
  EXPECT_TRUE(IsLoweredWrapperName(WrapperNameOf(base)));
}

TEST(TypeNameTest, OlderLayoutIsKnownAndLookalikesAreNot) {
  EXPECT_TRUE(IsLoweredModuleName("torch.jit.acme.LoweredModule.__torch__.Lin"));
  EXPECT_FALSE(IsLoweredModuleName("__torch__.LoweredModule"));
  EXPECT_FALSE(IsLoweredModuleName("__torch__.torch.jit.LoweredModule.x.y"));
}

}  // namespace
}  // namespace lowerd
