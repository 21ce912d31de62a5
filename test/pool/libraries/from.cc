extern "C" int LowerdTestNeeded();
extern "C" int LowerdTestShared();
extern "C" int LowerdTestFrom() { return LowerdTestNeeded() + LowerdTestShared(); }
