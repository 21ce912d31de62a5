extern "C" int LowerdTestShared() { return 3; }
