import { describe, expect, test } from 'vitest';
import type { InstanceName, LeaseNumber, Uid } from '../../../src/base/ids.ts';
import { encodeUserRecord } from '../../../src/sandbox/user-record.ts';

const record = encodeUserRecord({
  instance: 'main' as InstanceName,
  lease: 7 as LeaseNumber,
  uid: 70_001 as Uid,
});

describe('a user record', () => {
  test('names the uid and the gid of the same number, a home outside the job and bash', () => {
    const user: unknown = JSON.parse(record.files[0]?.text ?? '');
    expect(user).toEqual({
      userName: 'xce-main-7',
      uid: 70_001,
      gid: 70_001,
      realName: 'Execution uid of lease 7',
      homeDirectory: '/run/xce/home',
      shell: '/bin/bash',
      disposition: 'dynamic',
      locked: true,
    });
    expect(JSON.parse(record.files[1]?.text ?? '')).toEqual({
      groupName: 'xce-main-7',
      gid: 70_001,
      disposition: 'dynamic',
    });
  });

  test('is found by name and by number', () => {
    expect(record.files.map((file) => file.name)).toEqual(['xce-main-7.user', 'xce-main-7.group']);
    expect(record.links).toEqual([
      { name: '70001.user', target: 'xce-main-7.user' },
      { name: '70001.group', target: 'xce-main-7.group' },
    ]);
  });
});
