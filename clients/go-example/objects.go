package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"example.com/shoal-example/shoalv1"
)

const (
	bucket = "go-example"
	// The longest chunk of a stream.
	chunkBytes = 1 << 20
	// How often a write is sent at most.
	attemptsMax = 6
)

// objects shows shoal.v1.ObjectStore: conditions, versions, retries that are done once, streams, listing.
func objects(ctx context.Context, connection *grpc.ClientConn) error {
	store := shoalv1.NewObjectStoreClient(connection)
	key := []byte("greeting")
	if _, err := store.Delete(ctx, &shoalv1.DeleteRequest{Bucket: bucket, Key: key}); err != nil {
		return fmt.Errorf("delete: %w", err)
	}

	// Create: the rule rejects the write where there is an object already.
	create := &shoalv1.PutRequest{
		Bucket: bucket, Key: key, Value: []byte("hello"), Rules: &shoalv1.RejectRules{IfExists: true},
	}
	session := newSession()
	made, err := session.put(ctx, store, create)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	fmt.Printf("created, version %d\n", made.Version)

	// Again, as another write: the failure says which rule and which version is there.
	_, err = session.put(ctx, store, create)
	failure := failureOf(err)
	if failure.GetKind() != shoalv1.Failure_CONDITION_FAILED || failure.GetRule() != shoalv1.Failure_IF_EXISTS ||
		failure.GetCurrentVersion() != made.Version {
		return fmt.Errorf("a second create must fail its condition: %w (%v)", err, failure)
	}

	// Compare and set: read, change, store where nobody was faster.
	for {
		found, err := store.Get(ctx, &shoalv1.GetRequest{Bucket: bucket, Key: key})
		if err != nil {
			return fmt.Errorf("get: %w", err)
		}
		put := &shoalv1.PutRequest{
			Bucket: bucket, Key: key, Value: append(found.Value, '!'),
			Rules: &shoalv1.RejectRules{IfVersionNot: proto.Uint64(found.Info.Version)},
		}
		stored, err := session.put(ctx, store, put)
		if failureOf(err).GetKind() == shoalv1.Failure_CONDITION_FAILED {
			continue
		}
		if err != nil {
			return fmt.Errorf("compare and set: %w", err)
		}
		fmt.Printf("%q, version %d\n", put.Value, stored.Version)
		break
	}

	large := make([]byte, 3*chunkBytes+5)
	if _, err := rand.Read(large); err != nil {
		return err
	}
	if err := putStream(ctx, store, []byte("large"), large); err != nil {
		return fmt.Errorf("put stream: %w", err)
	}
	back, err := getStream(ctx, store, []byte("large"))
	if err != nil {
		return fmt.Errorf("get stream: %w", err)
	}
	if !bytes.Equal(back, large) {
		return errors.New("the stream gave other bytes")
	}
	return list(ctx, store, [][]byte{key, []byte("large")})
}

// failureOf is what a failed call says to programs; nil where the status comes from elsewhere.
func failureOf(err error) *shoalv1.Failure {
	for _, detail := range status.Convert(err).Details() {
		if failure, ok := detail.(*shoalv1.Failure); ok {
			return failure
		}
	}
	return nil
}

// session numbers writes, so that the server does one that is sent again once. For one goroutine: a session may have 64 writes under
// way, but their numbers must differ modulo 64.
type session struct {
	number   uint64
	sequence uint64
}

func newSession() *session {
	var random [8]byte
	// Never fails, says its documentation.
	_, _ = rand.Read(random[:])
	return &session{number: binary.LittleEndian.Uint64(random[:])}
}

// put sends a write until its outcome is known, or it was sent often enough.
func (s *session) put(ctx context.Context, store shoalv1.ObjectStoreClient, request *shoalv1.PutRequest) (*shoalv1.PutResponse, error) {
	s.sequence++
	ctx = metadata.AppendToOutgoingContext(ctx,
		"shoal-session", strconv.FormatUint(s.number, 10), "shoal-sequence", strconv.FormatUint(s.sequence, 10))
	pause := 10 * time.Millisecond
	for attempt := 1; ; attempt++ {
		response, err := store.Put(ctx, request)
		if err == nil || attempt == attemptsMax || !worthAnother(err) {
			return response, err
		}
		select {
		case <-time.After(pause):
			pause *= 4
		case <-ctx.Done():
			return nil, err
		}
	}
}

// worthAnother says whether the same write, with its request id, may succeed or tell its outcome when it is sent again.
func worthAnother(err error) bool {
	switch failureOf(err).GetKind() {
	case shoalv1.Failure_BUSY, shoalv1.Failure_OVERLOADED, shoalv1.Failure_CLOSED, shoalv1.Failure_TOO_SLOW,
		shoalv1.Failure_UNKNOWN_OUTCOME:
		return true
	case shoalv1.Failure_KIND_UNSPECIFIED:
		// From the transport: a broken connection.
		return status.Code(err) == codes.Unavailable
	default:
		return false
	}
}

// putStream stores a value of any size: a header, chunks, the end. Without the end nothing is stored.
func putStream(ctx context.Context, store shoalv1.ObjectStoreClient, key, value []byte) error {
	stream, err := store.PutStream(ctx)
	if err != nil {
		return err
	}
	send := func(message *shoalv1.PutStreamRequest) bool {
		// A failure to send is io.EOF; CloseAndRecv says why.
		return stream.Send(message) == nil
	}
	open := send(&shoalv1.PutStreamRequest{Part: &shoalv1.PutStreamRequest_Header{
		Header: &shoalv1.PutStreamHeader{Bucket: bucket, Key: key, Metadata: &shoalv1.Metadata{ContentType: "x/y"}},
	}})
	for rest := value; open && len(rest) > 0; {
		size := min(len(rest), chunkBytes)
		open = send(&shoalv1.PutStreamRequest{Part: &shoalv1.PutStreamRequest_Chunk{Chunk: rest[:size]}})
		rest = rest[size:]
	}
	if open {
		send(&shoalv1.PutStreamRequest{Part: &shoalv1.PutStreamRequest_End{
			End: &shoalv1.PutStreamEnd{Bytes: uint64(len(value))},
		}})
	}
	response, err := stream.CloseAndRecv()
	if err != nil {
		return err
	}
	fmt.Printf("stored %d bytes, version %d\n", len(value), response.Version)
	return nil
}

// getStream reads a value of any size. All of it is of one version.
func getStream(ctx context.Context, store shoalv1.ObjectStoreClient, key []byte) ([]byte, error) {
	stream, err := store.GetStream(ctx, &shoalv1.GetStreamRequest{Bucket: bucket, Key: key})
	if err != nil {
		return nil, err
	}
	var value []byte
	var info *shoalv1.ObjectInfo
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if info == nil {
			info = message.Info
		}
		value = append(value, message.Chunk...)
	}
	if uint64(len(value)) != info.GetBytes() {
		return nil, fmt.Errorf("%d of %d bytes came", len(value), info.GetBytes())
	}
	return value, nil
}

// list reads the keys page by page and compares them.
func list(ctx context.Context, store shoalv1.ObjectStoreClient, expected [][]byte) error {
	var keys [][]byte
	request := &shoalv1.ListRequest{Bucket: bucket, PageSize: 1}
	for {
		page, err := store.List(ctx, request)
		if err != nil {
			return fmt.Errorf("list: %w", err)
		}
		for _, entry := range page.Entries {
			fmt.Printf("%s\t%d bytes, version %d\n", entry.Key, entry.Info.Bytes, entry.Info.Version)
			keys = append(keys, entry.Key)
		}
		// A page may be short, even empty, and yet not be the last.
		if page.NextStartAfter == nil {
			break
		}
		request.StartAfter = page.NextStartAfter
	}
	if len(keys) != len(expected) {
		return fmt.Errorf("list: %q instead of %q", keys, expected)
	}
	for i, key := range keys {
		if !bytes.Equal(key, expected[i]) {
			return fmt.Errorf("list: %q instead of %q", keys, expected)
		}
	}
	return nil
}
