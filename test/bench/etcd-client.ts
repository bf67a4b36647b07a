/**
 * As much of etcd's gRPC as the benchmark asks for, over node:http2 and one connection: what a client library would
 * add is not etcd's.
 */
import { connect, constants } from 'node:http2';

export type EtcdClient = {
  put(key: string, value: string): Promise<void>;
  /** A lease of so many seconds. */
  grant(ttlS: number): Promise<void>;
  close(): void;
};

/** Whole numbers of protobuf's wire format. */
const varint = (value: number): Buffer => {
  const bytes: number[] = [];
  let rest = value;
  for (; rest >= 0x80; rest = Math.floor(rest / 0x80)) bytes.push((rest % 0x80) + 0x80);
  return Buffer.from([...bytes, rest]);
};

const textField = (field: number, text: string): Buffer => {
  const bytes = Buffer.from(text);
  return Buffer.concat([varint(field * 8 + 2), varint(bytes.length), bytes]);
};

/** A message behind its flag (not compressed) and its length. */
const frameOf = (message: Buffer): Buffer => {
  const head = Buffer.alloc(5);
  head.writeUInt32BE(message.length, 1);
  return Buffer.concat([head, message]);
};

/** `endpoint` is http://HOST:PORT. Resolves when the connection stands. */
export const connectEtcd = async (endpoint: string): Promise<EtcdClient> => {
  const session = connect(endpoint);
  await new Promise<void>((resolve, reject) => {
    session.once('connect', () => resolve());
    session.once('error', reject);
  });
  const call = (path: string, message: Buffer): Promise<void> =>
    new Promise((resolve, reject) => {
      const stream = session.request({
        [constants.HTTP2_HEADER_METHOD]: 'POST',
        [constants.HTTP2_HEADER_PATH]: path,
        'content-type': 'application/grpc',
        te: 'trailers',
      });
      let status: unknown;
      stream.on('response', (headers) => {
        status = headers['grpc-status'];
      });
      stream.on('trailers', (headers) => {
        status = headers['grpc-status'];
      });
      stream.on('error', reject);
      stream.on('end', () => (status === '0' ? resolve() : reject(new Error(`${path}: status ${status}`))));
      stream.resume();
      stream.end(frameOf(message));
    });
  return {
    put: (key, value) =>
      call('/etcdserverpb.KV/Put', Buffer.concat([textField(1, key), textField(2, value)])),
    grant: (ttlS) => call('/etcdserverpb.Lease/LeaseGrant', Buffer.concat([varint(8), varint(ttlS)])),
    close: () => session.close(),
  };
};
