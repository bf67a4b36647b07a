import { describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import { type ConfigPorts, chooseConfigPath, loadConfig } from '../../../src/config/load.ts';
import { FILE, MINIMAL } from './sample.ts';

const portsWith = (changes: Partial<ConfigPorts>): ConfigPorts => ({
  readTrusted: () => Buffer.from(MINIMAL),
  hostName: () => 'N2.cluster.example',
  declaredRanges: () => [],
  ...changes,
});

describe('chooseConfigPath', () => {
  const from = { flag: undefined, variable: undefined, isRoot: false, workingDirectory: () => '/home/alice' };

  test.each([
    ['nothing said: the file of the system', {}, FILE],
    ['the flag', { flag: '/a.ini', variable: '/b.ini' }, '/a.ini'],
    ['the flag, from the working directory', { flag: 'x/../a.ini' }, '/home/alice/a.ini'],
    ['the variable', { variable: '/b.ini' }, '/b.ini'],
    ['an empty variable is not set', { variable: '' }, FILE],
    ['root ignores the variable', { variable: '/tmp/evil.ini', isRoot: true }, FILE],
    ['root may use the flag', { flag: '/a.ini', variable: '/tmp/evil.ini', isRoot: true }, '/a.ini'],
  ])('%s', (_claim, changes, expected) => {
    expect(chooseConfigPath({ ...from, ...changes })).toBe(expected);
  });
});

describe('loadConfig', () => {
  test('reads the path with a bound and takes the host name for the node', () => {
    const asked: unknown[] = [];
    const { path, settings } = loadConfig(
      FILE,
      portsWith({
        readTrusted: (...call) => {
          asked.push(call);
          return Buffer.from(MINIMAL);
        },
      }),
    );
    expect(asked).toEqual([[FILE, 1 << 20]]);
    expect(path).toBe(FILE);
    expect(settings.worker.node).toBe('n2.cluster.example');
  });

  test('a file that cannot be read is no reason for defaults', () => {
    const ports = portsWith({
      readTrusted: () => {
        throw new XceError('io', `cannot open ${FILE}: ENOENT`, { at: FILE });
      },
    });
    expect(() => loadConfig(FILE, ports)).toThrow(
      expect.objectContaining({
        code: 'config-missing',
        message: `cannot open ${FILE}: ENOENT`,
        exitStatus: 78,
      }),
    );
  });

  test('a file that others may write keeps its own code', () => {
    const ports = portsWith({
      readTrusted: () => {
        throw new XceError('config-unsafe', 'writable');
      },
    });
    expect(() => loadConfig(FILE, ports)).toThrow(expect.objectContaining({ code: 'config-unsafe' }));
  });

  test('a pool that this machine declares as taken is refused, with the part and the owner', () => {
    const ports = portsWith({
      declaredRanges: () => [
        { first: 100_000, last: 600_100_000, owner: 'SUB_UID_MIN to SUB_UID_MAX of /etc/login.defs' },
        { first: 79_990, last: 80_500, owner: '"alice" in /etc/subuid:3' },
      ],
    });
    expect(() => loadConfig(FILE, ports)).toThrow(
      expect.objectContaining({
        code: 'pool-range',
        message: '[pool] range 70000-79999: 79990-79999 belongs to "alice" in /etc/subuid:3 (79990-80500)',
      }),
    );
  });

  test('many overlaps are counted, not listed', () => {
    const declaredRanges = () =>
      Array.from({ length: 30 }, (_, index) => ({
        first: 70_000 + index,
        last: 70_000 + index,
        owner: `u${index}`,
      }));
    expect(() => loadConfig(FILE, portsWith({ declaredRanges }))).toThrow(/u3 \(70003\), and 26 more$/);
  });

  test('a machine whose ranges cannot be read has no configuration', () => {
    const ports = portsWith({
      declaredRanges: () => {
        throw new XceError('declared-ranges', '/etc/subuid:1: "x" is not owner:first:count');
      },
    });
    expect(() => loadConfig(FILE, ports)).toThrow(expect.objectContaining({ code: 'declared-ranges' }));
  });
});
