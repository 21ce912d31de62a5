#include "src/rpc/address.h"

#include <gtest/gtest.h>

namespace lowerd::rpc {
namespace {

TEST(AddressTest, LoopbackIsWhatOnlyThisMachineReaches) {
  for (const char* address :
       {"127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1", "unix:/x", "unix-abstract:x"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address :
       {"0.0.0.0:1", "127.example.com:1", "127.0.0.1.example.com:1", "[::]:1", "[::ffff:1.2.3.4]:1",
        "localhost.example.com:1", "10.0.0.1:1", ":1"}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

TEST(AddressTest, AddressToServeOnHasAHostAndAPort) {
  for (const char* address : {"127.0.0.1:0", "[::1]:50051", "host:65535", "unix:/run/lowerd"}) {
    EXPECT_TRUE(CheckListenAddress(address).ok()) << address;
  }
  for (const char* address : {"", "nowhere", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1",
                              "127.0.0.1:7x", ":50051", "unix:"}) {
    EXPECT_FALSE(CheckListenAddress(address).ok()) << address;
  }
}

}  // namespace
}  // namespace lowerd::rpc
