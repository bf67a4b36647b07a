/** Variables that every step has from its sandbox; neither callers nor the configuration may set them. */
export const FIXED_VARIABLES = [
  'HOME',
  'TMPDIR',
  'USER',
  'LOGNAME',
  'SHELL',
  'XCE_JOB',
  'XCE_ATTEMPT',
  'XCE_LEASE',
  'XCE_NODE',
  'XCE_NODES',
  'XCE_UID',
] as const;
export type FixedVariable = (typeof FIXED_VARIABLES)[number];

/** What the suite tells a step begins so; more than the fixed ones may come. */
export const OWN_PREFIX = 'XCE_';

export const isFixedVariable = (name: string): boolean => FIXED_VARIABLES.some((fixed) => fixed === name);
