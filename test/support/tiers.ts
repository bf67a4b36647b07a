/** The tiers that vitest runs, in the order of `npm test`; each is the folder of its name under test/. */
export type VitestTier = {
  readonly name: string;
  readonly needsRoot: boolean;
  /** In a mount namespace of its own, so that no mount of a test outlives the tier, however that ends. */
  readonly ownMounts: boolean;
  readonly testMsMax: number;
  readonly hookMsMax: number;
  readonly workersMax: number;
  /** The tier as a whole; then it is ended and has failed. */
  readonly tierMsMax: number;
  readonly globalSetup: string | undefined;
};

const small = (name: string): VitestTier => ({
  name,
  needsRoot: false,
  ownMounts: false,
  testMsMax: 20_000,
  hookMsMax: 20_000,
  workersMax: 2,
  tierMsMax: 600_000,
  globalSetup: undefined,
});

export const VITEST_TIERS: readonly VitestTier[] = [
  // They change owners, drop privilege and mount; nothing in them pretends to be root.
  { ...small('unit'), needsRoot: true, ownMounts: true },
  { ...small('property'), needsRoot: true, ownMounts: true, testMsMax: 60_000 },
  { ...small('crash'), testMsMax: 60_000, tierMsMax: 1_200_000 },
  // File systems of its own that are shut down under the log; a mount of theirs elsewhere would keep them alive.
  { ...small('power'), needsRoot: true, ownMounts: true, testMsMax: 120_000, workersMax: 1 },
  small('golden'),
  { ...small('model'), testMsMax: 120_000 },
  small('tidy'),
  {
    ...small('cli'),
    needsRoot: true,
    testMsMax: 120_000,
    tierMsMax: 1_200_000,
    globalSetup: './test/cli/global-setup.ts',
  },
  {
    name: 'cluster',
    needsRoot: true,
    ownMounts: false, // its nodes have a reaper, which must see their mounts
    testMsMax: 180_000,
    hookMsMax: 1_800_000, // the first boot on a machine makes the node image
    workersMax: 1,
    tierMsMax: 3_600_000,
    globalSetup: './test/support/cluster/vitest-setup.ts',
  },
  {
    name: 'storage', // the lease log on real replicated and network storage
    needsRoot: true,
    ownMounts: false,
    testMsMax: 300_000,
    hookMsMax: 1_800_000,
    workersMax: 2, // each waits for its servers most of the time
    tierMsMax: 3_600_000,
    globalSetup: './test/support/cluster/vitest-setup.ts',
  },
];
