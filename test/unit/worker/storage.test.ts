import { describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import type { MountFacts } from '../../../src/os/mounts.ts';
import { storageCheck } from '../../../src/worker/storage.ts';

const mountAt = (path: string): MountFacts => ({
  path,
  source: 'server:/export',
  type: 'nfs4',
  options: [],
  superOptions: [],
  device: '0:1',
  fsid: '1',
  mountId: 7,
});

const STORAGE = [
  { name: 'scratch', path: '/scratch', workspace: '/scratch/xce', local: false },
  { name: 'project', path: '/project', workspace: undefined, local: false },
];

const codeOf = (
  claims: { roots?: { path: string }[]; workspace?: { storage: string; path: string } | null },
  look: (path: string) => MountFacts = mountAt,
  local = false,
): string => {
  const storage = STORAGE.map((one) => ({ ...one, local }));
  try {
    storageCheck({ storage }, look)({ roots: [], workspace: null, ...claims });
  } catch (error) {
    if (error instanceof XceError) return error.code;
    throw error;
  }
  return 'none';
};

describe('what a job may write', () => {
  test.each(['/scratch', '/scratch/a/b', '/project/x'])('%s lies in a storage', (path) => {
    expect(codeOf({ roots: [{ path }] })).toBe('none');
  });

  test.each([
    '/etc',
    '/scratch2',
    '/scratch/../etc',
    '/scratch/./a',
    '/scratch//a',
    '/scratch/',
    '/',
    'scratch',
  ])('%s is refused', (path) => {
    expect(codeOf({ roots: [{ path }] })).toBe('sandbox-refused');
  });

  test('a workspace is exactly the configured one of its storage', () => {
    expect(codeOf({ workspace: { storage: 'scratch', path: '/scratch/xce' } })).toBe('none');
    expect(codeOf({ workspace: { storage: 'scratch', path: '/scratch/other' } })).toBe('sandbox-refused');
    expect(codeOf({ workspace: { storage: 'project', path: '/project/xce' } })).toBe('sandbox-refused');
    expect(codeOf({ workspace: { storage: 'none', path: '/scratch/xce' } })).toBe('sandbox-refused');
  });

  test('storage that lies on the root file system is not mounted, unless it is the host’s own disk on purpose', () => {
    const onRoot = () => mountAt('/');
    expect(codeOf({ roots: [{ path: '/scratch/a' }] }, onRoot)).toBe('mount-changed');
    expect(codeOf({ roots: [{ path: '/scratch/a' }] }, onRoot, true)).toBe('none');
  });

  test('storage that is not there is refused', () => {
    const missing = () => {
      throw new XceError('os', 'ENOENT');
    };
    expect(codeOf({ workspace: { storage: 'scratch', path: '/scratch/xce' } }, missing)).toBe(
      'mount-changed',
    );
  });
});
