import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type {
  Attempt,
  Epoch,
  InstanceName,
  JobId,
  LeaseNumber,
  NodeName,
  Uid,
} from '../../../src/base/ids.ts';
import type { SandboxSpec, StepSpec } from '../../../src/sandbox/backend.ts';
import { encodeStepInput as encode } from '../../../src/sandbox/step-input.ts';

const spec: SandboxSpec = {
  instance: 'main' as InstanceName,
  job: '42[1]' as JobId,
  attempt: 0 as Attempt,
  lease: 7 as LeaseNumber,
  epoch: 1 as Epoch,
  uid: 70_001 as Uid,
  node: 'n1' as NodeName,
  nodes: ['n1', 'n2'] as NodeName[],
  writablePaths: [],
  workspaceRoot: null,
};
const step = (
  argv: (string | Buffer)[],
  environment: (string | Buffer)[] = [],
  directory?: string,
): StepSpec => ({
  step: 'a',
  argv: argv.map((text) => Buffer.from(text)),
  environment: environment.map((text) => Buffer.from(text)),
  directory: directory === undefined ? null : Buffer.from(directory),
});
const SITE = { path: '/usr/local/bin:/usr/bin', variables: [] };
const encodeStepInput = (of: SandboxSpec, what: StepSpec, home: string): Buffer =>
  encode(of, what, { home, site: SITE });
const strings = (bytes: Buffer): string[] => bytes.toString('latin1').split('\0').slice(0, -1);
const codeOf = (call: () => unknown): unknown => {
  try {
    call();
  } catch (error) {
    return error instanceof Error && 'code' in error ? error.code : error;
  }
  return 'no error';
};

describe('the input of a step', () => {
  test('is the directory, the options of env, the fixed environment, the caller environment and the command', () => {
    expect(strings(encodeStepInput(spec, step(['id', '-u'], ['A=b=c']), '/home'))).toEqual([
      '/home',
      '--ignore-environment',
      '--',
      'HOME=/run/xce/home',
      'TMPDIR=/tmp',
      'USER=xce-main-7',
      'LOGNAME=xce-main-7',
      'SHELL=/bin/bash',
      'XCE_JOB=42[1]',
      'XCE_ATTEMPT=0',
      'XCE_LEASE=7',
      'XCE_NODE=n1',
      'XCE_NODES=n1,n2',
      'XCE_UID=70001',
      'PATH=/usr/local/bin:/usr/bin',
      'LANG=C.UTF-8',
      'A=b=c',
      'id',
      '-u',
    ]);
  });

  test('has the profile over what the site gives to all, and the caller over both', () => {
    const site = {
      path: '/usr/bin',
      variables: [
        { name: 'PATH', value: '/opt/mpi/bin:/usr/bin' },
        { name: 'LD_LIBRARY_PATH', value: '/opt/mpi/lib' },
      ],
    };
    const all = (environment: string[]): string[] =>
      strings(encode(spec, step(['true'], environment), { home: '/', site })).slice(-4, -1);
    const [path, library] = ['PATH=/opt/mpi/bin:/usr/bin', 'LD_LIBRARY_PATH=/opt/mpi/lib'];
    expect(all([])).toEqual([path, 'LANG=C.UTF-8', library]);
    expect(all(['PATH=/mine', 'LANG=C'])).toEqual(['PATH=/mine', 'LANG=C', library]);
  });

  test('keeps every argument and value byte for byte', () => {
    const bytes = fc
      .uint8Array({ maxLength: 40 })
      .map((array) => Buffer.from(array.map((byte) => (byte === 0 ? 1 : byte))));
    fc.assert(
      fc.property(fc.array(bytes, { maxLength: 8 }), bytes, (argv, value) => {
        const input = encodeStepInput(
          spec,
          {
            ...step(['cmd']),
            argv: [Buffer.from('cmd'), ...argv],
            environment: [Buffer.concat([Buffer.from('V='), value])],
          },
          '/',
        );
        const all = strings(input);
        expect(all.slice(all.indexOf('cmd') + 1)).toEqual(argv.map((text) => text.toString('latin1')));
        expect(all).toContain(`V=${value.toString('latin1')}`);
      }),
    );
  });

  test('names the asked directory', () => {
    expect(strings(encodeStepInput(spec, step(['true'], [], '/w/ a\n'), '/home'))[0]).toBe('/w/ a\n');
    expect(codeOf(() => encodeStepInput(spec, step(['true'], [], 'relative'), '/home'))).toBe('usage');
  });

  test('refuses a variable of the sandbox, one that is given twice and one without a name', () => {
    for (const environment of [['HOME=/x'], ['XCE_NODES='], ['A=1', 'A=2'], ['=x'], ['A'], ['']]) {
      expect(codeOf(() => encodeStepInput(spec, step(['true'], environment), '/'))).toBe('usage');
    }
  });

  test('refuses what a NUL-terminated string cannot hold and a command that env would take for a variable', () => {
    for (const argv of [['true', 'a\0b'], ['a=b'], [''], []]) {
      expect(codeOf(() => encodeStepInput(spec, step(argv), '/'))).toBe('usage');
    }
  });

  test('refuses more than execve takes, by string and in sum', () => {
    const most = 'x'.repeat(131_071);
    expect(strings(encodeStepInput(spec, step(['echo', most]), '/')).at(-1)).toHaveLength(131_071);
    expect(codeOf(() => encodeStepInput(spec, step(['echo', `${most}x`]), '/'))).toBe('too-large');
    expect(codeOf(() => encodeStepInput(spec, step(['echo'], [`A=${most}`]), '/'))).toBe('too-large');
    expect(codeOf(() => encodeStepInput(spec, step(['echo', ...Array<string>(16).fill(most)]), '/'))).toBe(
      'too-large',
    );
    expect(codeOf(() => encodeStepInput(spec, step(['echo', ...Array<string>(230_000).fill('')]), '/'))).toBe(
      'too-large',
    );
  });

  test('leaves out a node list that would take the room of the arguments', () => {
    const nodes = Array.from({ length: 16_000 }, (_, index) => `node${index}` as NodeName);
    const all = strings(encodeStepInput({ ...spec, nodes }, step(['true']), '/'));
    expect(all.some((text) => text.startsWith('XCE_NODES='))).toBe(false);
  });
});
